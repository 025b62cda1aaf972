"""Length: which rows go through the middle. Commit rules, plans, and the shortened stack."""

from __future__ import annotations

from laval.shorten.commit import Commits, Rule
from laval.shorten.level import Core, Level
from laval.shorten.memory import Memory, Nothing
from laval.shorten.plan import Plan, check_depth, read_plan
from laval.shorten.rows import Rows
from laval.shorten.settings import RULES, Shortening, build_stacks, read_shortening, write_shortening

__all__ = [
    "RULES",
    "Commits",
    "Core",
    "Level",
    "Memory",
    "Nothing",
    "Plan",
    "Rows",
    "Rule",
    "Shortening",
    "build_stacks",
    "check_depth",
    "read_plan",
    "read_shortening",
    "write_shortening",
]
