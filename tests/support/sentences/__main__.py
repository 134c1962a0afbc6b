"""Write the files."""

from support.sentences import ALL

for golden in ALL:
    golden.file.write_text(golden.said(), encoding="utf-8")
