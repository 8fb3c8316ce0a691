//! The EFA RDM conformance suite.
