"""A finished cluster run becomes numbers, tables, sentences, pictures and timelines here."""
