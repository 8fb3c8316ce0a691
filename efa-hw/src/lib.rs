//! efa-core's Nic trait over real verbs.
