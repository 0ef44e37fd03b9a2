"""Being here puts ``tests/`` on the import path, so that every room can import ``tiny_models`` and ``fakes``."""
