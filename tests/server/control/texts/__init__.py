"""Tests of texts that become tokens."""
