"""Tests; one folder for each kind (CONTRIBUTING.md)."""
