//! Both ends of a tunnel over in-memory pipes.

mod calls;
mod compatibility;
mod ending;
mod ends;
mod pitfalls;
mod relay;
mod streams;
mod support;
mod upgrades;
mod websocket;
