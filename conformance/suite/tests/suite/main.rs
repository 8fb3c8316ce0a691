//! The suite over the corpus, over changed traces, and over an engine with seeded faults.

mod corpus;
mod each_event;
mod rehearsal;
mod replay;
mod seeded;
mod tags;
