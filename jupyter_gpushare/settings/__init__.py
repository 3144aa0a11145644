"""The tables of settings and of quotas, from which traits, checks, schemas and documentation come."""

from .setting import AUTO, Setting, schema
from .table import SETTINGS

__all__ = ["AUTO", "SETTINGS", "Setting", "schema"]
