//! Version 2 of Git's protocol (`gitprotocol-v2`): the commit of a branch, and packs with some objects.
//!
//! These functions block. The transport limits time and bytes.

use std::{
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use gix_hash::ObjectId;
use gix_transport::{
    Protocol, Service,
    client::{
        Capabilities,
        blocking_io::{ExtendedBufRead, Transport, TransportV2Ext as _},
    },
};
use proto::ErrorChain;

use super::{
    HEADS,
    objects::{MAX_ALLOCATION, invalid, refused},
};
use crate::{Commit, Reference, RepositoryError};

/// The time for one exchange with the server, from the connection to the last byte.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to the server, and what ends it.
pub(super) struct GitConnection {
    pub(super) transport: BoxTransport,
    /// Set when the server sent more bytes than allowed.
    pub(super) exceeded: Arc<AtomicBool>,
    /// Ends the connection when it is dropped.
    pub(super) guard: Box<dyn Send>,
}

/// A session with a server: a transport after its handshake.
pub(super) struct Session {
    transport: BoxTransport,
    capabilities: Capabilities,
}

/// The objects that a fetch asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A commit with its trees, and without files if the server can leave them out.
    Trees(ObjectId),
    /// Files.
    Files(Vec<ObjectId>),
}

/// A transport of any kind.
pub(super) type BoxTransport = Box<dyn Transport + Send>;

type Reader<'a> = Box<dyn ExtendedBufRead<'a> + Unpin + 'a>;

impl Session {
    /// Performs the handshake.
    pub(super) fn open(mut transport: BoxTransport) -> Result<Self, RepositoryError> {
        let (actual_protocol, capabilities) = {
            let response = transport.handshake(Service::UploadPack, &[]).map_err(failed)?;
            (response.actual_protocol, response.capabilities)
        };
        if actual_protocol != Protocol::V2 {
            let what =
                "the server does not offer version 2 of Git's protocol; sshd needs AcceptEnv GIT_PROTOCOL";
            return Err(invalid(what.to_owned()));
        }
        let format = capabilities.capability("object-format").and_then(|format| format.value());
        if format.is_some_and(|format| format != "sha1") {
            return Err(invalid("repositories with SHA-256 are not supported".to_owned()));
        }
        Ok(Self { transport, capabilities })
    }

    /// Returns the commit of a reference; `None` if the repository has no commit.
    pub(super) fn commit(&mut self, wanted: &Reference) -> Result<Option<Commit>, RepositoryError> {
        let name = match wanted {
            Reference::Commit(id) => return Ok(Some(Commit { id: id.clone(), branch: String::new() })),
            wanted => wanted.full_name().unwrap_or_default(),
        };
        match self.reference(&name)? {
            Some(commit) => Ok(Some(commit)),
            // The server does not list a `HEAD` whose branch is gone either.
            None if self.has_branches()? => Err(RepositoryError::ReferenceNotFound(wanted.clone())),
            None => Ok(None),
        }
    }

    fn has_branches(&mut self) -> Result<bool, RepositoryError> {
        let mut reader = self.invoke("ls-refs", vec![format!("ref-prefix {HEADS}")])?;
        let (mut line, mut found) = (String::new(), false);
        while next_line(&mut reader, &mut line)? {
            found = true;
        }
        Ok(found)
    }

    fn reference(&mut self, name: &str) -> Result<Option<Commit>, RepositoryError> {
        let arguments = vec!["symrefs".to_owned(), "peel".to_owned(), format!("ref-prefix {name}")];
        let mut reader = self.invoke("ls-refs", arguments)?;
        let (mut line, mut found) = (String::new(), None);
        while next_line(&mut reader, &mut line)? {
            let mut words = line.trim_end().split(' ');
            let (id, full_name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if full_name != name {
                continue;
            }
            let (mut target, mut id) = (name, id);
            for word in words {
                if let Some(symbolic) = word.strip_prefix("symref-target:") {
                    target = symbolic;
                }
                // A tag with a message is an object of its own, and this is its commit.
                if let Some(peeled) = word.strip_prefix("peeled:") {
                    id = peeled;
                }
            }
            let branch = target.strip_prefix(HEADS).unwrap_or(target).to_owned();
            let id = id.parse().map_err(|_| unexpected(&line))?;
            found = Some(Commit { id, branch });
        }
        Ok(found)
    }

    /// Fetches objects into a directory of packs.
    pub(super) fn fetch(
        &mut self,
        want: Want,
        directory: &Path,
        interrupted: &AtomicBool,
    ) -> Result<(), RepositoryError> {
        let supports = |feature: &str| {
            let fetch = self.capabilities.capability("fetch");
            fetch.and_then(|fetch| fetch.supports(feature)).unwrap_or_default()
        };
        let mut arguments = match want {
            Want::Trees(id) if supports("filter") => {
                vec![format!("want {id}"), "deepen 1".to_owned(), "filter blob:none".to_owned()]
            }
            Want::Trees(id) if supports("shallow") => vec![format!("want {id}"), "deepen 1".to_owned()],
            Want::Trees(id) => vec![format!("want {id}")],
            Want::Files(ids) => ids.iter().map(|id| format!("want {id}")).collect(),
        };
        arguments.extend(["no-progress", "ofs-delta", "done"].map(str::to_owned));
        let mut reader = self.invoke("fetch", arguments)?;
        find_pack(&mut reader)?;
        reader.set_progress_handler(Some(Box::new(|_, _| {
            if interrupted.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })));
        let options = gix_pack::bundle::write::Options {
            thread_limit: Some(1),
            alloc_limit_bytes: Some(MAX_ALLOCATION),
            ..Default::default()
        };
        gix_pack::Bundle::write_to_directory(
            &mut reader,
            Some(directory),
            &mut gix_utils::progress::Discard,
            interrupted,
            None::<gix_object::find::Never>,
            gix_hash::Kind::Sha1,
            options,
        )
        .map(drop)
        .map_err(|error| refused(format!("the pack of the server is invalid: {error}")))
    }

    fn invoke(&mut self, command: &str, arguments: Vec<String>) -> Result<Reader<'_>, RepositoryError> {
        let agent = concat!("kas/", env!("CARGO_PKG_VERSION"));
        let mut capabilities = vec![("agent", Some(agent))];
        if self.capabilities.contains("object-format") {
            capabilities.push(("object-format", Some("sha1")));
        }
        let arguments = arguments.into_iter().map(Into::into);
        let reader = self.transport.invoke(command, capabilities.into_iter(), Some(arguments), false);
        reader.map_err(failed)
    }
}

/// Reads up to the section of the pack.
fn find_pack(reader: &mut Reader<'_>) -> Result<(), RepositoryError> {
    reader.reset(Protocol::V2);
    let mut line = String::new();
    loop {
        if !next_line(reader, &mut line)? {
            return Err(invalid("the response of the server has no pack".to_owned()));
        }
        match line.trim_end() {
            "packfile" => return Ok(()),
            "acknowledgments" | "shallow-info" | "wanted-refs" => {
                while next_line(reader, &mut line)? {}
                reader.reset(Protocol::V2);
            }
            _ => return Err(unexpected(&line)),
        }
    }
}

/// Reads a line. Returns false at the end of a section.
fn next_line(reader: &mut Reader<'_>, line: &mut String) -> Result<bool, RepositoryError> {
    line.clear();
    let read = reader.readline_str(line);
    read.map(|bytes| bytes > 0).map_err(failed)
}

fn failed(error: impl std::error::Error + 'static) -> RepositoryError {
    invalid(ErrorChain(&error).to_string())
}

fn unexpected(line: &str) -> RepositoryError {
    let line: String = line.trim_end().chars().take(200).collect();
    match line.strip_prefix("ERR ") {
        Some(error) => invalid(format!("the server refuses the request: {error:?}")),
        None => invalid(format!("unexpected response of the server: {line:?}")),
    }
}
