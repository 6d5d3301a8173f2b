"""Tasks: data, loss and metrics."""

from naspipe.tasks.classification import ClassificationTask as ClassificationTask
from naspipe.tasks.data import Batch as Batch
from naspipe.tasks.data import Dataset as Dataset
from naspipe.tasks.data import Splits as Splits
from naspipe.tasks.data import TensorDataset as TensorDataset
from naspipe.tasks.data import split_tensors as split_tensors
from naspipe.tasks.task import Task as Task
