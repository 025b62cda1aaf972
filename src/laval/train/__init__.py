"""Training a plug-in: recipes, data, objectives, the Trainer that carries them out, and what is saved at the end.

The package can be called: `laval.train(model, data, recipe)`. Only then is the Trainer imported, which takes seconds.
"""

from __future__ import annotations

import sys
import types


class Train(types.ModuleType):
    def __call__(self, model, data=None, recipe=None):
        """Train `model` by a recipe (a Recipe or a YAML file), and return it; the same as `laval train`.

        data: a file, a folder, a list of them, or Data, instead of the recipe's own. Errors: as `run.train`.
        """
        from laval.train.run import train, with_data

        return train(model, with_data(recipe, data))


sys.modules[__name__].__class__ = Train
