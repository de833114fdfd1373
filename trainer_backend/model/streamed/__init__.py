"""Decoder layers in chunks of queries, forward and backward, exactly: a layer's memory hardly grows with the row."""

from trainer_backend.model.streamed.decoder import Streamed, streamed_of
from trainer_backend.model.streamed.layer import Keep, Segment, segments_of

__all__ = ["Keep", "Segment", "Streamed", "segments_of", "streamed_of"]
