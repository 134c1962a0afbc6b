"""What the fields of a model mean, out of the docstrings below them.

pydantic can do that itself (``use_attribute_docstrings``) as it makes the class: then it reads and parses the source.
Every command reads the settings, and for each that would cost a tenth of a second.
"""

import ast
import inspect
from itertools import pairwise

from pydantic import BaseModel


def described(model: type[BaseModel]) -> type[BaseModel]:
    """The same model with descriptions of its fields, which its schema has too."""
    made: type[BaseModel] = type(model.__name__, (model,), {"__doc__": model.__doc__, "__module__": model.__module__})
    for statement in ast.walk(ast.parse(inspect.getsource(model))):
        for field, text in pairwise(statement.body) if isinstance(statement, ast.ClassDef) else ():
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    made.model_fields[name].description = inspect.cleandoc(meaning)
    # The schema was made with the class, when its fields had no descriptions yet.
    made.model_rebuild(force=True)
    return made
