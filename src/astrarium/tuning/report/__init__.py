"""A finished search becomes numbers, tables, rows and pictures here."""
