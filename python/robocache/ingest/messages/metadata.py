"""Reads rosbag2's metadata of a bag from metadata.yaml, a record of an MCAP file, or tables of a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..recording import SourceError
from ..yaml import parse_yaml

if TYPE_CHECKING:
    from .bags import Channel


@dataclass(frozen=True)
class BagMetadata:
    """The metadata of a bag. A field that they lack is empty.

    distro: the ROS distribution that recorded the bag, such as "humble".
    types: the type of each topic, and the encoding of its messages.
    compression: the format in which single messages are compressed, such as "zstd"; "" if they are not.
    counts: the number of messages of each topic in all files of the bag.
    """

    distro: str = ""
    types: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    compression: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> BagMetadata:
        """Reads the fields of `rosbag2_bagfile_information`."""
        types, counts = {}, {}
        for topic in fields.get("topics_with_message_count") or []:
            facts = topic["topic_metadata"]
            name = str(facts["name"])
            types[name] = str(facts.get("type") or ""), str(facts.get("serialization_format") or "")
            counts[name] = int(topic["message_count"])
        is_by_message = str(fields.get("compression_mode") or "").upper() == "MESSAGE"
        compression = str(fields.get("compression_format") or "zstd").lower() if is_by_message else ""
        return cls(str(fields.get("ros_distro") or "").lower(), types, compression, counts)

    @classmethod
    def of_text(cls, text: str, where: object) -> BagMetadata:
        """Reads the YAML that rosbag2 stores in a file of a bag.

        Raises:
            SourceError: the text is not such YAML.
        """
        fields = parse_yaml(text, where)
        inner = fields.get("rosbag2_bagfile_information", fields)
        if not isinstance(inner, dict):
            raise SourceError(f"{where}: expected rosbag2_bagfile_information, got {type(inner).__name__}")
        return cls.of(inner)

    def or_else(self, other: BagMetadata) -> BagMetadata:
        """Fills missing fields from the metadata of a file of the bag, except the counts, which are not those of the whole bag."""
        return BagMetadata(
            self.distro or other.distro,
            {**other.types, **self.types},
            self.compression or other.compression,
            self.counts,
        )

    def complete(self, channel: Channel) -> Channel:
        """Adds the type to a channel without a type: early versions of rosbag2's MCAP files have none."""
        schema, encoding = self.types.get(channel.topic, ("", ""))
        if channel.schema or not schema:
            return channel
        return replace(channel, schema=schema, encoding=channel.encoding or encoding)
