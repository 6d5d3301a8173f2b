"""The supernet in torch: blocks, shared layers, and the extraction of subnets."""

from naspipe.supernet.block import Block as Block
from naspipe.supernet.block import ChoiceBlock as ChoiceBlock
from naspipe.supernet.block import FixedBlock as FixedBlock
from naspipe.supernet.supernet import Supernet as Supernet
from naspipe.supernet.supernet import build_subnet as build_subnet
