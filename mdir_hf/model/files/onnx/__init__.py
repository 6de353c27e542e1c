"""ONNX: the initialisers of a graph, read by byte ranges, under the names in the original checkpoint."""

from mdir_hf.model.files.onnx.onnx_source import OnnxSource as OnnxSource
from mdir_hf.model.files.onnx.weights import OnnxWeights as OnnxWeights
from mdir_hf.model.files.onnx.weights import open_named_onnx as open_named_onnx
from mdir_hf.model.files.onnx.weights import open_onnx as open_onnx
