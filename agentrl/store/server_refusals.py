"""What a server's refusals mean for a user: one paragraph each, with what happened, where, and what to do next.

The password of the URL is in none of them.
"""

from __future__ import annotations

from sqlalchemy.engine import URL


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def explain_connect_failure(url: URL, message: str) -> str:
    """One paragraph for a failed first connection: what happened, where, and what to do next."""
    masked = url.render_as_string(hide_password=True)
    text = message.replace(url.password, "***") if isinstance(url.password, str) and url.password else message
    if "password" in text or "authentication failed" in text:
        return (
            f"The database at {masked} refused user {url.username!r}: the password is wrong or missing. "
            "Correct it in AGENTRL_DATABASE_URL (special characters must be percent-encoded)."
        )
    if "database" in text and "does not exist" in text:
        return (
            f"The server at {masked} answers, but it has no database called {url.database!r}. "
            f"Create it (createdb {url.database}), or name another one in AGENTRL_DATABASE_URL."
        )
    if "permission denied" in text:
        return no_permission(masked, url, text)
    if "role" in text and "does not exist" in text:
        return f"The server at {masked} has no user {url.username!r}. Create it, or name another one in AGENTRL_DATABASE_URL."
    detail = " ".join(text.split())
    return (
        f"No database server answers at {masked} ({detail}). Start it or correct AGENTRL_DATABASE_URL; without that variable "
        "a private server is started for you."
    )


def no_permission(masked: str, url: URL, cause: object) -> str:
    first = " ".join(str(cause).split())
    if "for database" not in first:
        return (
            f"User {url.username!r} may not do this at {masked} ({first}). Work on runs needs the role agentrl_worker "
            f"(grant agentrl_worker to {url.username}); retention, vacuum and migrations need the owner of the schema. "
            "Use another user in AGENTRL_DATABASE_URL, or grant what is missing."
        )
    return (
        f"User {url.username!r} may not use the database at {masked} ({first}). Grant it CONNECT and CREATE on the database "
        f"(grant connect, create on database {url.database} to {url.username}), or use another user in AGENTRL_DATABASE_URL."
    )


def incomplete_schema(masked: str, cause: str) -> str:
    """For a database of this revision whose schema lacks something all the same; ``cause`` says what."""
    return (
        f"The schema agentrl at {masked} bears the newest revision, but another state of the code made it ({cause}), and no "
        "migration leads from there. Use a new database (another AGENTRL_HOME or AGENTRL_DATABASE_URL); the code that made "
        "this one can save its runs (agentrl db export RUN FOLDER), and `agentrl db import FOLDER` reads them into the new one."
    )
