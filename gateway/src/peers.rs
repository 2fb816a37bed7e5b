//! peers
#![allow(missing_docs)]
pub mod address;
pub mod replay;
pub mod seal;
pub mod stamp;
pub mod standing;
