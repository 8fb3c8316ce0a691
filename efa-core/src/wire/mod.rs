//! Every packet type of the EFA RDM protocol v4.
