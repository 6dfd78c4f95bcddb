"""The schedules of the trainer's loop on one trace, and how often workers load new weights."""
