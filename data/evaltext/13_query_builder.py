"""A little layer over sqlite3: describe a table as a class, ask for rows in Python.

>>> with Database() as db:
...     db.create(Book)
...     db.insert(Book(title="Tides", year=1987), Book(title="Loam", year=2003))
...     [book.title for book in db.query(Book).where(Book.year > 1990)]
['Loam']
"""

import sqlite3

SQL_TYPES = {int: "INTEGER", str: "TEXT", float: "REAL", bytes: "BLOB"}


class Condition:
    def __init__(self, sql, *parameters):
        self.sql = sql
        self.parameters = parameters

    def __and__(self, other):
        return Condition(f"({self.sql} AND {other.sql})", *self.parameters, *other.parameters)

    def __or__(self, other):
        return Condition(f"({self.sql} OR {other.sql})", *self.parameters, *other.parameters)

    def __invert__(self):
        return Condition(f"NOT ({self.sql})", *self.parameters)


class Column:
    """A descriptor: on the class it builds conditions, on a row it is the value."""

    def __init__(self, kind, *, default=None):
        self.kind = kind
        self.default = default

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, row, owner):
        return self if row is None else row.__dict__.get(self.name, self.default)

    def __set__(self, row, value):
        if value is not None and not isinstance(value, self.kind):
            raise TypeError(f"{self.name} must be {self.kind.__name__}, not {type(value).__name__}")
        row.__dict__[self.name] = value

    def __lt__(self, value):
        return Condition(f'"{self.name}" < ?', value)

    def __gt__(self, value):
        return Condition(f'"{self.name}" > ?', value)

    def like(self, pattern):
        return Condition(f'"{self.name}" LIKE ?', pattern)

    def is_missing(self):
        return Condition(f'"{self.name}" IS NULL')

    def one_of(self, *values):
        return Condition(f'"{self.name}" IN ({", ".join("?" * len(values))})', *values)


class Table:
    columns: dict

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.columns = {name: item for name, item in vars(cls).items() if isinstance(item, Column)}
        cls.table_name = cls.__name__.lower()

    def __init__(self, **values):
        for name, value in values.items():
            if name not in self.columns:
                raise AttributeError(f"{type(self).__name__} has no column {name}")
            setattr(self, name, value)


class Query:
    def __init__(self, connection, model, condition=None, order=""):
        self._connection, self._model = connection, model
        self._condition, self._order = condition, order

    def where(self, condition):
        if self._condition is not None:
            condition = self._condition & condition
        return Query(self._connection, self._model, condition, self._order)

    def order_by(self, column, descending=False):
        order = f' ORDER BY "{column.name}" ' + ("DESC" if descending else "ASC")
        return Query(self._connection, self._model, self._condition, order)

    def _execute(self, what, tail=""):
        sql, parameters = f'SELECT {what} FROM "{self._model.table_name}"', ()
        if self._condition is not None:
            sql += f" WHERE {self._condition.sql}"
            parameters = self._condition.parameters
        return self._connection.execute(sql + tail, parameters)

    def __iter__(self):
        names = list(self._model.columns)
        for values in self._execute(", ".join(f'"{name}"' for name in names), self._order):
            yield self._model(**dict(zip(names, values)))

    def count(self):
        return self._execute("COUNT(*)").fetchone()[0]


class Database:
    def __init__(self, path=":memory:"):
        self._connection = sqlite3.connect(path)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._connection.close()

    def create(self, model):
        fields = ", ".join(f'"{name}" {SQL_TYPES[column.kind]}' for name, column in model.columns.items())
        self._connection.execute(f'CREATE TABLE "{model.table_name}" ({fields})')

    def insert(self, *rows):
        with self._connection:  # all of them or none
            for row in rows:
                values = [getattr(row, name) for name in row.columns]
                marks = ", ".join("?" for _ in values)
                self._connection.execute(f'INSERT INTO "{row.table_name}" VALUES ({marks})', values)

    def query(self, model):
        return Query(self._connection, model)


class Book(Table):
    title = Column(str)
    year = Column(int)
    shelf = Column(str, default="returns")


def demo():
    with Database() as db:
        db.create(Book)
        db.insert(*(Book(title=f"Volume {n}", year=1990 + n) for n in range(1, 8)))
        db.insert(Book(title="Atlas", shelf="C"))
        books = db.query(Book)
        recent = [book.title for book in books.where(Book.year > 1994).order_by(Book.year, descending=True)]
        undated = [book.shelf for book in books.where(Book.year.is_missing())]
        odd = books.where(Book.year.one_of(1991, 1993)).where(~Book.title.like("%3")).count()
        return recent, undated, odd
