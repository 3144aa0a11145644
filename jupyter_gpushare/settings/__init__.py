"""Tables of settings and of quota fields, from which traits, checks, schemas and documentation are made."""

from .setting import AUTO, Setting, schema
from .table import SETTINGS

__all__ = ["AUTO", "SETTINGS", "Setting", "schema"]
