"""The rules of git for files that are left out of a tree, as code sync applies them."""

from monarch._core.trees.gitignore import RuleChain, Rules, rules_above

__all__ = ["RuleChain", "Rules", "rules_above"]
