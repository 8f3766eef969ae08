"""The protocol's messages are made from the compiled description that is shipped beside this file.

They live in a pool of their own: a program that imports another library with the same messages (a client)
has those in the common pool, where each name may exist only once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
COMPILED = Path(__file__).with_name("inference.binpb")


@cache
def pool() -> descriptor_pool.DescriptorPool:
    files = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes())
    descriptors = descriptor_pool.DescriptorPool()
    for file in files.file:
        descriptors.AddSerializedFile(file.SerializeToString())
    return descriptors


@cache
def message(name: str) -> Any:
    """Return the class of a message by its name in the .proto."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def filled(name: str, content: object) -> Any:
    """Return a message made of plain dicts and lists with the same field names."""
    return json_format.ParseDict(content, message(name)(), descriptor_pool=pool())
