"""From a text to blocks of ids: corpus -> alphabet -> ids -> (T, B) blocks."""
