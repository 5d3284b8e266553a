"""The door kit: what doors of several protocols do alike."""
