"""``cudnn-backend bench``: see ``run``. Imports nothing: ``fresh_process`` measures what importing costs."""
