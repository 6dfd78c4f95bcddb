"""Shipped environments, each a small package."""
