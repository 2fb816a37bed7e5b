//! The files of layers. Users who can push an artifact decide on their contents.

use std::{
    cell::Cell,
    io::{self, Read},
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use git::{FileSelection, RepositoryError, RepositoryFile};

/// The largest size of all unpacked layers, as a factor of the largest selection of files.
const MAX_RATIO: u64 = 16;
/// The bytes that the layers may always have: an archive has 1.5 KiB without a file.
const MIN_LIMIT: u64 = 64 << 10;
/// The longest path, in bytes: that of Linux.
const MAX_PATH: usize = 4096;
/// The size of a block of an archive.
const BLOCK: usize = 512;
/// The most bytes in front of the content of an entry: the rest of the block before it, a long name or a PAX header, and the blocks of
/// both heads.
const MAX_HEAD: u64 = (BLOCK + BLOCK + MAX_PATH + BLOCK) as u64;

/// A layer that was fetched.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) form: LayerForm,
    pub(crate) content: Bytes,
}

/// The form of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LayerForm {
    Tar,
    TarGzip,
    /// One file with this path.
    File(String),
}

impl LayerForm {
    /// Returns the form of a layer with a media type and a title (`org.opencontainers.image.title`), if kas knows it.
    pub(crate) fn of(media_type: &str, title: Option<&str>) -> Option<Self> {
        let gzip = [".tar+gzip", ".tar.gzip", "+tar+gzip"].iter().any(|end| media_type.ends_with(end));
        match (gzip, media_type.ends_with(".tar")) {
            (true, _) => Some(Self::TarGzip),
            (_, true) => Some(Self::Tar),
            _ => title.map(|title| Self::File(title.to_owned())),
        }
    }
}

/// Returns the selected files of all layers, in the order of their paths.
///
/// # Errors
///
/// A limit is exceeded, a selected entry is no regular file, an archive is broken, or a path leads out of the artifact.
pub(crate) fn unpack(
    layers: &[Layer],
    selection: &FileSelection,
) -> Result<Vec<RepositoryFile>, RepositoryError> {
    // Also what is skipped has to be decompressed.
    let limit = MAX_RATIO.saturating_mul(selection.limits.bytes as u64).max(MIN_LIMIT);
    let mut unpacker = Unpacker { selection, files: Vec::new(), bytes: 0, limit, unpacked: 0 };
    for layer in layers {
        match &layer.form {
            LayerForm::File(path) => {
                let path = clean(path)?;
                unpacker.add(path, &mut &*layer.content, layer.content.len() as u64)?;
            }
            LayerForm::Tar => unpacker.archive(&*layer.content)?,
            LayerForm::TarGzip => unpacker.archive(GzDecoder::new(&*layer.content))?,
        }
    }
    let mut files = unpacker.files;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    match files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        Some(pair) => Err(refused(format!("the artifact has {} twice", pair[0].path))),
        None => Ok(files),
    }
}

struct Unpacker<'a> {
    selection: &'a FileSelection,
    files: Vec<RepositoryFile>,
    bytes: usize,
    /// The most bytes of all unpacked layers.
    limit: u64,
    unpacked: u64,
}

/// The bytes that the library may read from an archive. It reads the head of an entry into memory, whatever length the head announces.
#[derive(Debug, Default)]
struct Budget {
    /// The bytes that all layers may still have.
    total: Cell<u64>,
    /// The bytes that the head of the next entry may still have, while it is read.
    head: Cell<Option<u64>>,
}

/// A reader that fails beyond its budget.
struct BudgetReader<'a, R> {
    inner: R,
    budget: &'a Budget,
}

impl<R: Read> Read for BudgetReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Budget { total, head } = self.budget;
        let read = self.inner.read(buffer)?;
        let spend = |left: u64| left.checked_sub(read as u64);
        total.set(spend(total.get()).ok_or_else(|| io::Error::other("it unpacks to too many bytes"))?);
        if let Some(left) = head.get() {
            let long =
                || io::Error::other(format!("an entry has a name or a header of over {MAX_PATH} bytes"));
            head.set(Some(spend(left).ok_or_else(long)?));
        }
        Ok(read)
    }
}

impl Unpacker<'_> {
    fn archive(&mut self, reader: impl Read) -> Result<(), RepositoryError> {
        let limit = self.limit;
        let budget = Budget { total: Cell::new(limit - self.unpacked), head: Cell::default() };
        let mut archive = tar::Archive::new(BudgetReader { inner: reader, budget: &budget });
        let broken = |error: io::Error| {
            refused(format!(
                "an archive of the artifact is broken, or unpacks to more than {limit} bytes: {error}"
            ))
        };
        let mut entries = archive.entries().map_err(broken)?;
        loop {
            budget.head.set(Some(MAX_HEAD));
            let entry = entries.next().transpose().map_err(broken)?;
            budget.head.set(None);
            let Some(mut entry) = entry else { break };
            let path = String::from_utf8(entry.path_bytes().into_owned())
                .map_err(|_| refused("the artifact has a path that is not UTF-8".to_owned()))?;
            let kind = entry.header().entry_type();
            if kind.is_gnu_sparse() {
                return Err(refused(format!("the artifact has the sparse file {path:?}")));
            }
            if !kind.is_dir() {
                let path = clean(&path)?;
                if !kind.is_file() && self.selection.selects(&path) {
                    let kind = if kind.is_symlink() { "a symbolic link" } else { "a special file" };
                    return Err(RepositoryError::NotAFile { path, kind });
                }
                if kind.is_file() {
                    let size = entry.size();
                    self.add(path, &mut entry, size)?;
                }
            }
            // The rest of the content is no head of the next entry.
            io::copy(&mut entry, &mut io::sink()).map_err(broken)?;
        }
        self.unpacked = limit - budget.total.get();
        Ok(())
    }

    fn add(&mut self, path: String, reader: &mut impl Read, size: u64) -> Result<(), RepositoryError> {
        let selection = self.selection;
        if !selection.selects(&path) {
            return Ok(());
        }
        let limits = selection.limits;
        if self.files.len() == limits.files {
            return Err(selection.too_many_files());
        }
        if size > limits.file_bytes as u64 {
            return Err(RepositoryError::TooLarge { path, max_bytes: limits.file_bytes });
        }
        let mut content = Vec::new();
        let read = reader.take(limits.file_bytes as u64 + 1).read_to_end(&mut content);
        read.map_err(|error| refused(format!("{path} cannot be unpacked: {error}")))?;
        self.bytes += content.len();
        if self.bytes > limits.bytes {
            return Err(selection.too_many_bytes());
        }
        self.files.push(RepositoryFile { path, content });
        Ok(())
    }
}

/// Returns a path without `./`.
fn clean(path: &str) -> Result<String, RepositoryError> {
    if path.len() > MAX_PATH {
        return Err(refused(format!("the artifact has a path of over {MAX_PATH} bytes")));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| *part != ".").collect();
    let outside = |part: &&str| part.is_empty() || *part == ".." || part.contains('\0');
    if parts.is_empty() || parts.iter().any(outside) {
        return Err(refused(format!("the artifact has the path {path:?}, which leads out of it")));
    }
    Ok(parts.join("/"))
}

/// Returns the error of an artifact whose content is refused.
fn refused(what: String) -> RepositoryError {
    RepositoryError::Refused(what)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use git::FileLimits;
    use tar::{Builder, EntryType, Header};

    use super::*;

    /// An entry of an archive: its path, its type, and its content or target.
    pub(crate) type TestEntry<'a> = (&'a str, EntryType, &'a [u8]);

    /// Returns an archive.
    pub(crate) fn archive(entries: &[TestEntry<'_>]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // The library itself refuses to write such paths.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            if kind.is_symlink() || kind.is_hard_link() {
                header.set_link_name(std::str::from_utf8(content).unwrap()).unwrap();
                header.set_size(0);
                header.set_cksum();
                builder.append(&header, &[][..]).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                builder.append(&header, *content).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    pub(crate) fn gzip(content: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap().into()
    }

    fn selection(limits: FileLimits) -> FileSelection {
        FileSelection::new(["**/*.yaml"], |path: &str| path.ends_with(".yaml"), limits)
    }

    const LIMITS: FileLimits = FileLimits { files: 3, file_bytes: 100, bytes: 200 };

    fn unpack_entries(entries: &[TestEntry<'_>]) -> Result<Vec<String>, String> {
        let layer = Layer { form: LayerForm::TarGzip, content: gzip(&archive(entries)) };
        let files = unpack(&[layer], &selection(LIMITS)).map_err(|error| error.to_string())?;
        let shown =
            |file: RepositoryFile| format!("{}={}", file.path, String::from_utf8(file.content).unwrap());
        Ok(files.into_iter().map(shown).collect())
    }

    #[test]
    fn selected_files_are_unpacked_in_order() {
        let entries: [TestEntry<'_>; 4] = [
            ("./b.yaml", EntryType::Regular, b"2"),
            ("prod/", EntryType::Directory, b""),
            ("prod/a.yaml", EntryType::Regular, b"1"),
            ("README.md", EntryType::Regular, b"x"),
        ];
        assert_eq!(unpack_entries(&entries).unwrap(), ["b.yaml=2", "prod/a.yaml=1"]);
        let plain = Layer { form: LayerForm::Tar, content: archive(&entries).into() };
        let file = Layer { form: LayerForm::File("c.yaml".to_owned()), content: Bytes::from_static(b"3") };
        assert_eq!(unpack(&[plain, file], &selection(LIMITS)).unwrap().len(), 3);
    }

    /// The archives that an attacker with the right to push may send.
    #[test]
    fn hostile_archive_is_refused() {
        let big = [b'x'; 101];
        let half = [b'x'; 100];
        let many: Vec<String> = (0..4).map(|n| format!("{n}.yaml")).collect();
        let many: Vec<_> = many.iter().map(|path| (&**path, EntryType::Regular, &b"x"[..])).collect();
        let cases: [(&[TestEntry<'_>], &str); 9] = [
            (&[("../x.yaml", EntryType::Regular, b"x")], "leads out of it"),
            (&[("a/../../x", EntryType::Regular, b"x")], "leads out of it"),
            (&[("/etc/x.yaml", EntryType::Regular, b"x")], "leads out of it"),
            (&[("a.yaml", EntryType::Symlink, b"/etc/passwd")], "a.yaml is a symbolic link"),
            (&[("a.yaml", EntryType::Link, b"b")], "a.yaml is a special file"),
            (&[("a.yaml", EntryType::Regular, &big)], "a.yaml is larger than 100 bytes"),
            (&many, "over 3 files are selected"),
            (
                &[
                    ("a.yaml", EntryType::Regular, &half),
                    ("b.yaml", EntryType::Regular, &half),
                    ("c.yaml", EntryType::Regular, &half),
                ],
                "the sum of all files is larger than 200 bytes",
            ),
            (&[("a.yaml", EntryType::Regular, b"1"), ("./a.yaml", EntryType::Regular, b"2")], "a.yaml twice"),
        ];
        for (entries, expected) in cases {
            let error = unpack_entries(entries).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        // A link that is not selected hurts nobody.
        assert!(unpack_entries(&[("bin", EntryType::Symlink, b"x")]).unwrap().is_empty());
    }

    #[test]
    fn bomb_is_not_unpacked() {
        let zeros = vec![0; 1 << 20];
        let error =
            unpack_entries(&[("skipped", EntryType::Regular, &zeros), ("a.yaml", EntryType::Regular, b"1")]);
        assert!(error.unwrap_err().contains("unpacks to more than 65536 bytes"));
        let cut = archive(&[("a.yaml", EntryType::Regular, b"1")]);
        let layer = Layer { form: LayerForm::TarGzip, content: gzip(&cut).slice(..20) };
        assert!(unpack(&[layer], &selection(LIMITS)).unwrap_err().to_string().contains("broken"));
    }

    /// Returns an archive that begins with an entry without content checks, and ends with `a.yaml`.
    fn extended(kind: EntryType, content: &[u8]) -> Layer {
        let mut tar = archive(&[("./@LongLink", kind, content)]);
        tar.truncate(BLOCK + content.len().next_multiple_of(BLOCK));
        tar.extend(archive(&[("a.yaml", EntryType::Regular, b"1")]));
        Layer { form: LayerForm::TarGzip, content: gzip(&tar) }
    }

    /// The library would read them into memory. 300 MiB of them are 300 KiB in an artifact.
    #[test]
    fn long_name_or_header_is_refused_before_it_is_read() {
        let unpacked = |kind: EntryType, content: &[u8]| {
            let selection = selection(FileLimits { bytes: 64 << 20, ..LIMITS });
            let files = unpack(&[extended(kind, content)], &selection).map_err(|error| error.to_string())?;
            Ok::<_, String>(files.into_iter().map(|file| file.path).collect::<Vec<_>>())
        };
        let record = |path: &str| {
            let length = path.len() + " path=\n".len();
            let digits = (length + 4).to_string().len();
            format!("{} path={path}\n", length + digits).into_bytes()
        };
        assert_eq!(unpacked(EntryType::GNULongName, b"long/b.yaml\0").unwrap(), ["long/b.yaml"]);
        assert_eq!(unpacked(EntryType::XHeader, &record("pax/b.yaml")).unwrap(), ["pax/b.yaml"]);
        let long = format!("{}b.yaml", "d/".repeat(2000));
        assert_eq!(unpacked(EntryType::GNULongName, long.as_bytes()).unwrap(), [long.as_str()]);
        assert_eq!(unpacked(EntryType::XHeader, &record(&long)).unwrap(), [long.as_str()]);
        let bomb = vec![b'a'; 48 << 20];
        for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
            for content in [&bomb[..], &bomb[..2 * MAX_PATH]] {
                let error = unpacked(kind, content).unwrap_err();
                assert!(error.contains("a name or a header of over 4096 bytes"), "{kind:?}: {error}");
            }
        }
        let path = "a".repeat(MAX_PATH + 1);
        assert!(clean(&path).unwrap_err().to_string().contains("a path of over 4096 bytes"));
    }

    /// A size in a PAX header is that of the next entry, so that no head hides in the content of another entry.
    #[test]
    fn head_in_the_content_of_an_entry_is_refused_too() {
        let hidden = archive(&[("./@LongLink", EntryType::GNULongName, &[b'a'; 2 * MAX_PATH])]);
        let mut tar = archive(&[("./pax", EntryType::XHeader, b"10 size=0\n")]);
        tar.truncate(2 * BLOCK);
        tar.extend(archive(&[("a.yaml", EntryType::Regular, &hidden)]));
        let layer = Layer { form: LayerForm::Tar, content: tar.into() };
        let error = unpack(&[layer], &selection(LIMITS)).unwrap_err().to_string();
        assert!(error.contains("a name or a header of over 4096 bytes"), "{error}");
    }

    #[test]
    fn all_layers_together_have_one_limit() {
        let zeros = vec![0; 40 << 10];
        let layer = Layer {
            form: LayerForm::TarGzip,
            content: gzip(&archive(&[("skipped", EntryType::Regular, &zeros)])),
        };
        assert!(unpack(std::slice::from_ref(&layer), &selection(LIMITS)).unwrap().is_empty());
        let error = unpack(&[layer.clone(), layer], &selection(LIMITS)).unwrap_err().to_string();
        assert!(error.contains("unpacks to more than 65536 bytes"), "{error}");
    }

    #[test]
    fn sparse_file_is_refused() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNUSparse);
        header.set_path("skipped").unwrap();
        header.set_size(0);
        header.as_gnu_mut().unwrap().realsize = *b"00000000000\0";
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, &[][..]).unwrap();
        let layer = Layer { form: LayerForm::Tar, content: builder.into_inner().unwrap().into() };
        assert!(unpack(&[layer], &selection(LIMITS)).unwrap_err().to_string().contains("sparse file"));
    }

    #[test]
    fn form_follows_from_the_media_type() {
        for (media_type, title, expected) in [
            ("application/vnd.cncf.flux.content.v1.tar+gzip", None, Some(LayerForm::TarGzip)),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Some("dir"), Some(LayerForm::TarGzip)),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", None, Some(LayerForm::TarGzip)),
            ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", None, Some(LayerForm::TarGzip)),
            ("application/vnd.oci.image.layer.v1.tar", None, Some(LayerForm::Tar)),
            ("application/yaml", Some("a.yaml"), Some(LayerForm::File("a.yaml".to_owned()))),
            ("application/wasm", None, None),
        ] {
            assert_eq!(LayerForm::of(media_type, title), expected, "{media_type}");
        }
    }
}
