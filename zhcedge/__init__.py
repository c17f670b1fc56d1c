"""zhcedge: an edge video-detection appliance whose frames enter memory once and whose claims are measured."""

__version__ = "0.1.0"
