//! The real MNIST: downloaded once, then read from the user's cache folder.

use super::Data;
use crate::error::Error;

/// Loads MNIST, downloading it if it is not in the cache.
///
/// # Errors
///
/// [`Error::Data`] with the reason, when it is neither cached nor to be had.
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

    use crate::data::{Data, PIXELS, SIDE, Split};

    /// Plain HTTP: each file's hash shows that the data is right, and TLS takes longer to build than
    /// the rest of the download.
    const SERVER: &str = "http://storage.googleapis.com/cvdf-datasets/mnist";
    /// Time for the name look-up and for the connection, each.
    const PATIENCE: Duration = Duration::from_secs(4);
    /// Time for one file; the largest has 9.9 MB.
    const TRANSFER: Duration = Duration::from_secs(180);

    /// A file in IDX format: a magic number, the dims, then one byte an element.
    struct File {
        /// Its path in the cache. Burn's own loader uses the same.
        path: &'static str,
        dims: &'static [usize],
        /// Of the compressed file.
        sha256: &'static str,
    }

    const TRAIN: [File; 2] = [
        File {
            path: "train/train-images-idx3-ubyte",
            dims: &[60_000, SIDE, SIDE],
            sha256: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        },
        File {
            path: "train/train-labels-idx1-ubyte",
            dims: &[60_000],
            sha256: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        },
    ];
    const TEST: [File; 2] = [
        File {
            path: "test/t10k-images-idx3-ubyte",
            dims: &[10_000, SIDE, SIDE],
            sha256: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        },
        File {
            path: "test/t10k-labels-idx1-ubyte",
            dims: &[10_000],
            sha256: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ];

    pub(super) fn load() -> Result<Data, String> {
        let cache =
            dirs::cache_dir().ok_or("there is no cache folder: neither XDG_CACHE_HOME nor HOME is set")?;
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
            if let Ok(bytes) = fs::read(&path) {
                match self.elements(bytes) {
                    Ok(elements) => return Ok(elements),
                    Err(reason) => eprintln!("{}: {reason}, fetching it again", path.display()),
                }
            }
            let (_, name) = self.path.split_once('/').unwrap_or(("", self.path));
            let url = format!("{server}/{name}.gz");
            eprintln!("downloading {url} to {}", path.display());
            let bytes = self
                .download(&url)
                .map_err(|reason| format!("it is not in {} and {url} failed: {reason}", folder.display()))?;
            // Renamed when it is whole: an interrupted run leaves no half of a file.
            let part = path.with_extension(format!("part-{}", std::process::id()));
            let kept = fs::create_dir_all(path.parent().unwrap_or(folder))
                .and_then(|()| fs::write(&part, &bytes))
                .and_then(|()| fs::rename(&part, &path));
            if let Err(error) = kept {
                eprintln!("{}: {error}, so the next run fetches it again", path.display());
                let _ = fs::remove_file(&part);
            }
            self.elements(bytes)
        }

        /// The whole file from the server, unpacked.
        fn download(&self, url: &str) -> Result<Vec<u8>, String> {
            fn text(error: impl Display) -> String {
                error.to_string()
            }
            let config = Agent::config_builder()
                .timeout_resolve(Some(PATIENCE))
                .timeout_connect(Some(PATIENCE))
                .timeout_recv_response(Some(PATIENCE))
                .timeout_global(Some(TRANSFER));
            // A proxy reaches other servers than this machine's own.
            let config = if url.starts_with("http://127.0.0.1") { config.proxy(None) } else { config };
            let mut answer = Agent::new_with_config(config.build()).get(url).call().map_err(text)?;
            let packed = answer.body_mut().with_config().limit(16 << 20).read_to_vec().map_err(text)?;
            let hash: String = Sha256::digest(&packed).iter().map(|byte| format!("{byte:02x}")).collect();
            if hash != self.sha256 {
                return Err(format!("its SHA-256 is {hash} instead of {}", self.sha256));
            }
            let mut bytes = Vec::new();
            GzDecoder::new(&packed[..]).read_to_end(&mut bytes).map_err(text)?;
            Ok(bytes)
        }

        /// What follows the header, which must be that of this file.
        fn elements(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
            // 0x08: elements of one byte.
            let mut header = vec![0, 0, 0x08, self.dims.len() as u8];
            header.extend(self.dims.iter().flat_map(|&dim| (dim as u32).to_be_bytes()));
            let size = header.len() + self.dims.iter().product::<usize>();
            if bytes.len() != size {
                return Err(format!("{} bytes instead of {size}", bytes.len()));
            }
            if !bytes.starts_with(&header) {
                return Err("not the header of this file".to_owned());
            }
            let elements = bytes.split_off(header.len());
            // One dimension: labels.
            match elements.iter().find(|&&label| self.dims.len() == 1 && label > 9) {
                Some(label) => Err(format!("a label of {label}")),
                None => Ok(elements),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::{io::Write, net::TcpListener, thread};

        use super::*;

        /// Two labels, packed by `gzip -n`, and their hash.
        const PACKED: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64\x60\x60\
            \x60\x62\x67\x02\x00\xf2\x5b\xd3\x34\x0a\x00\x00\x00";
        const LABELS: File = File {
            path: "train/labels",
            dims: &[2],
            sha256: "12c05a88e47bc5089e4b27992bea81a2498d499c0d017cf5f03917fd9e296edb",
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
            fs::write(folder.join(LABELS.path), b"damaged").expect("writing");
            assert_eq!(LABELS.load(&folder, &server()), Ok(vec![7, 2]));
            fs::remove_dir_all(&folder).expect("removing");
        }

        #[test]
        fn another_file_is_refused() {
            let folder = std::env::temp_dir().join(format!("burn-rocm-other-{}", std::process::id()));
            let other = File { sha256: TEST[1].sha256, ..LABELS };
            let reason = other.load(&folder, &server()).expect_err("another hash");
            assert!(reason.contains("SHA-256"), "{reason}");
            assert!(!folder.exists(), "nothing is written");
            let dims = File { dims: &[3], ..LABELS };
            assert!(dims.elements(vec![0; 3]).is_err() && dims.elements(vec![0; 11]).is_err());
        }
    }
}
