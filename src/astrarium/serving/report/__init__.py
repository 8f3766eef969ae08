"""What a run is worth: numbers, tables, pictures, timelines and the folders that keep them."""
