"""Measurements that the documentation quotes; run by hand, never by the library."""
