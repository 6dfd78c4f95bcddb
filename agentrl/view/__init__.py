"""The web page: runs, groups, trajectories, turns and tokens as they are stored. It only reads."""
