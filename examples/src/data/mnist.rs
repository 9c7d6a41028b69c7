//! The real MNIST: downloaded once, then read from the user's cache folder.

use super::Data;
use crate::error::Error;

/// Loads MNIST, downloading it if it is not in the cache.
///
/// # Errors
///
/// [`Error::Data`] with the reason, if MNIST is not cached and can't be downloaded.
pub fn load() -> Result<Data, Error> {
    imp::load().map_err(|reason| Error::Data { name: "MNIST", reason })
}

#[cfg(not(feature = "mnist"))]
mod imp {
    pub(super) fn load() -> Result<super::Data, String> {
        Err("this build is without the cargo feature `mnist`".to_owned())
    }
}

#[cfg(feature = "mnist")]
mod imp {
    use std::{fmt::Display, fs, io::Read, path::Path, time::Duration};

    use flate2::read::GzDecoder;
    use sha2::{Digest, Sha256};
    use ureq::Agent;

    use crate::data::{Data, PIXELS, Split};

    /// Plain HTTP is enough, because each file's hash is checked. A TLS library takes longer to
    /// build than the rest of the downloader.
    const SERVER: &str = "http://storage.googleapis.com/cvdf-datasets/mnist";
    /// The time limit of the name look-up, and that of the connection.
    const PATIENCE: Duration = Duration::from_secs(4);
    /// The time limit of one file.
    const TRANSFER: Duration = Duration::from_secs(180);
    /// The most bytes of a file, compressed and uncompressed. MNIST's largest file has 9.9 and 47.0
    /// MB.
    const PACKED_LIMIT: u64 = 16 << 20;
    const LIMIT: u64 = 64 << 20;

    /// A file in IDX format: two zero bytes, the elements' type, the number of dims, four bytes for
    /// each dim, then one byte for each element.
    struct File {
        /// Its path in the cache. Burn's own loader uses the same.
        path: &'static str,
        /// The SHA-256 of the uncompressed file, cached or downloaded.
        sha256: &'static str,
    }

    const TRAIN: [File; 2] = [
        File {
            path: "train/train-images-idx3-ubyte",
            sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        },
        File {
            path: "train/train-labels-idx1-ubyte",
            sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        },
    ];
    const TEST: [File; 2] = [
        File {
            path: "test/t10k-images-idx3-ubyte",
            sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        },
        File {
            path: "test/t10k-labels-idx1-ubyte",
            sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ];

    pub(super) fn load() -> Result<Data, String> {
        let why = if cfg!(windows) { "the user has none" } else { "neither XDG_CACHE_HOME nor HOME is set" };
        let cache = dirs::cache_dir().ok_or_else(|| format!("there is no cache folder: {why}"))?;
        let folder = cache.join("burn-dataset").join("mnist");
        let split = |[images, labels]: &[File; 2]| {
            let (images, labels) = (images.load(&folder, SERVER)?, labels.load(&folder, SERVER)?);
            let mut split = Split::with_capacity(labels.len());
            for (image, label) in images.as_chunks::<PIXELS>().0.iter().zip(labels) {
                split.push(image, label);
            }
            Ok::<_, String>(split)
        };
        Ok(Data::new("MNIST", split(&TRAIN)?, split(&TEST)?))
    }

    impl File {
        /// The elements, from the cache or else from the server.
        fn load(&self, folder: &Path, server: &str) -> Result<Vec<u8>, String> {
            let path = folder.join(self.path);
            let cached = fs::read(&path).map_err(|error| error.to_string());
            let cached = match cached.and_then(|bytes| self.checked(bytes)) {
                Ok(bytes) => return Ok(elements(bytes)),
                Err(reason) => format!("{}: {reason}", path.display()),
            };
            let (_, name) = self.path.split_once('/').unwrap_or(("", self.path));
            let url = format!("{server}/{name}.gz");
            eprintln!("{cached}; downloading {url}");
            let bytes = self
                .download(&url)
                .and_then(|bytes| self.checked(bytes))
                .map_err(|reason| format!("{cached}; {url}: {reason}"))?;
            // The file is renamed when it is complete, so an interrupted run leaves no partial
            // file.
            let part = path.with_extension(format!("part-{}", std::process::id()));
            let kept = fs::create_dir_all(path.parent().unwrap_or(folder))
                .and_then(|()| fs::write(&part, &bytes))
                .and_then(|()| fs::rename(&part, &path));
            if let Err(error) = kept {
                eprintln!("{}: {error}, so the next run fetches it again", path.display());
                let _ = fs::remove_file(&part);
            }
            Ok(elements(bytes))
        }

        /// Downloads the file and uncompresses it.
        fn download(&self, url: &str) -> Result<Vec<u8>, String> {
            fn text(error: impl Display) -> String {
                error.to_string()
            }
            let config = Agent::config_builder()
                .timeout_resolve(Some(PATIENCE))
                .timeout_connect(Some(PATIENCE))
                .timeout_recv_response(Some(PATIENCE))
                .timeout_global(Some(TRANSFER));
            // A proxy can't reach a server on this machine.
            let config = if url.starts_with("http://127.0.0.1") { config.proxy(None) } else { config };
            let mut answer = Agent::new_with_config(config.build()).get(url).call().map_err(text)?;
            let packed = answer.body_mut().with_config().limit(PACKED_LIMIT).read_to_vec().map_err(text)?;
            let mut bytes = Vec::new();
            GzDecoder::new(&packed[..]).take(LIMIT).read_to_end(&mut bytes).map_err(text)?;
            Ok(bytes)
        }

        /// The file's bytes if they have its hash.
        fn checked(&self, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
            let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            if hash == self.sha256 {
                return Ok(bytes);
            }
            Err(format!("{} bytes with the SHA-256 {hash} instead of {}", bytes.len(), self.sha256))
        }
    }

    /// The elements after the header of a checked file.
    fn elements(mut file: Vec<u8>) -> Vec<u8> {
        file.split_off(4 + 4 * usize::from(file[3]))
    }

    #[cfg(test)]
    mod tests {
        use std::{io::Write, net::TcpListener, thread};

        use super::*;

        /// Two labels, packed by `gzip -n`.
        const PACKED: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64\x60\x60\
            \x60\x62\x67\x02\x00\xf2\x5b\xd3\x34\x0a\x00\x00\x00";
        const LABELS: File = File {
            path: "train/labels",
            sha256: "ccde9e37761edb216f68e4cda3e7e1a07cc7abea3580be5ea61f98b64667576c",
        };

        /// A server that answers one request with `PACKED`.
        fn server() -> String {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a request");
                let _ = stream.read(&mut [0; 1024]);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PACKED.len());
                let _ = stream.write_all(&[head.as_bytes(), PACKED].concat());
            });
            format!("http://{address}")
        }

        #[test]
        fn a_file_is_fetched_once_and_again_if_it_is_damaged() {
            let folder = std::env::temp_dir().join(format!("burn-rocm-mnist-{}", std::process::id()));
            assert_eq!(LABELS.load(&folder, &server()), Ok(vec![7, 2]));
            assert_eq!(LABELS.load(&folder, "http://127.0.0.1:1"), Ok(vec![7, 2]), "from the cache");
            // A changed label: length and header are right, but the hash is not.
            let path = folder.join(LABELS.path);
            let whole = fs::read(&path).expect("the cached file");
            let altered = [&whole[..9], &[3]].concat();
            for damaged in [&altered[..], &whole[..9], &[]] {
                fs::write(&path, damaged).expect("writing");
                assert_eq!(LABELS.load(&folder, &server()), Ok(vec![7, 2]));
                assert_eq!(fs::read(&path).expect("the cached file"), whole);
            }
            fs::write(&path, altered).expect("writing");
            let reason = LABELS.load(&folder, "http://127.0.0.1:1").expect_err("no server");
            assert!(reason.contains("train/labels: 10 bytes with the SHA-256 "), "{reason}");
            assert!(reason.contains(LABELS.sha256), "{reason}");
            fs::remove_dir_all(&folder).expect("removing");
        }

        #[test]
        fn another_file_is_refused() {
            let folder = std::env::temp_dir().join(format!("burn-rocm-other-{}", std::process::id()));
            let other = File { sha256: TEST[1].sha256, ..LABELS };
            let reason = other.load(&folder, &server()).expect_err("another hash");
            assert!(reason.contains("SHA-256"), "{reason}");
            assert!(!folder.exists(), "nothing is written");
        }
    }
}
