"""The Python API is made here; `import astrarium` shows it, and loads each part when it is first used."""
