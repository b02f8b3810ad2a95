"""The datasets: prepared once, then loaded in milliseconds and shared by all ranks of a machine."""

from utils.data.datasets import DATASETS, SPLITS, Images, load, prepare, store, whole_batch

__all__ = ["DATASETS", "SPLITS", "Images", "load", "prepare", "store", "whole_batch"]
