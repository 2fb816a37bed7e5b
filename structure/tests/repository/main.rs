//! The structure of the workspace, and the documents.

mod crates;
mod dependencies;
mod documents;
mod features;
mod generated;
mod modules;
mod names;
mod request_files;
