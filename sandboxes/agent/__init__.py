"""The program inside a sandbox: standard library only, Python 3.9 and later, delivered as source text.

Three kinds of process, each with less than the one before:

- the agent (`agent`, PID 1): speaks the framed protocol, bounds output, kills; the only one that sees the client's bytes;
- the zygote (`zygote`): a warm interpreter that forks one child per command and reads neither code nor requests;
- the command (`command`): the workload's user, no capabilities, its own session.
"""
