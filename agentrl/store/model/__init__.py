"""An explicit-state model of the store's protocol: every order of transactions, crashes, stalls and lost replies.

`docs/design/protocol-model.md` says what is stated, how each move maps to a function of the schema and what is left out.
Run ``python -m agentrl.store.model [quick|all|NAME]``. Standard library only.

Invariants
- truth: lag, double training and versions are tested against what weights truly contain, never against what a row says.
- exhaustive: a configuration that holds was explored to its last state; a failing one gives a shortest trace.
- readings: whatever the protocol decides has a reading that decides otherwise and is found broken.
"""
