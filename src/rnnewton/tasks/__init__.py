"""Problems that are made, not read."""
