//! The real MNIST, by Burn's own loader: downloaded once, then read from the user's cache folder.

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
    use std::net::{TcpStream, ToSocketAddrs};
    use std::panic;
    use std::path::{Path, PathBuf};
    use std::sync::mpsc;
    use std::time::Duration;

    use burn_dataset::Dataset;
    use burn_dataset::vision::{MnistDataset, MnistItem};

    use crate::data::{Data, PIXELS, SIDE, Split};

    /// Where burn-dataset downloads from.
    const HOST: &str = "storage.googleapis.com";
    /// Time for the name look-up and for the connection, each.
    const PATIENCE: Duration = Duration::from_secs(4);
    /// The files that burn-dataset keeps, and their sizes in bytes.
    const FILES: [(&str, u64); 4] = [
        ("train/train-images-idx3-ubyte", 16 + 60_000 * PIXELS as u64),
        ("train/train-labels-idx1-ubyte", 8 + 60_000),
        ("test/t10k-images-idx3-ubyte", 16 + 10_000 * PIXELS as u64),
        ("test/t10k-labels-idx1-ubyte", 8 + 10_000),
    ];

    pub(super) fn load() -> Result<Data, String> {
        let cache =
            dirs::cache_dir().ok_or("there is no cache folder: neither XDG_CACHE_HOME nor HOME is set")?;
        let folder = cache.join("burn-dataset").join("mnist");
        if !cached(&folder)? {
            reachable().map_err(|reason| format!("it is not in {} and {reason}", folder.display()))?;
            eprintln!("downloading MNIST to {}", folder.display());
        }
        quietly(|| Data::new("MNIST", split(&MnistDataset::train()), split(&MnistDataset::test())))
            .map_err(|reason| format!("burn-dataset failed to load it into {}: {reason}", folder.display()))
    }

    /// Whether all files are there and whole. burn-dataset takes any file that exists for a good one,
    /// so what an interrupted download has left is removed here.
    fn cached(folder: &Path) -> Result<bool, String> {
        let mut complete = true;
        for (name, size) in FILES {
            let path: PathBuf = folder.join(name);
            match std::fs::metadata(&path) {
                Ok(file) if file.len() == size => {}
                Ok(file) => {
                    let found = file.len();
                    eprintln!("{}: {found} bytes instead of {size}, fetching it again", path.display());
                    std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                    complete = false;
                }
                Err(_) => complete = false,
            }
        }
        Ok(complete)
    }

    /// Whether the server answers. Asked first, as the download has no time limit of its own and a machine
    /// behind a firewall would hang in it.
    fn reachable() -> Result<(), String> {
        let proxied = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
        if proxied.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
            return Ok(()); // The proxy knows; the look-up here may not.
        }
        let (sender, receiver) = mpsc::channel();
        // A look-up cannot be interrupted; its thread is left behind when it takes too long.
        std::thread::spawn(move || sender.send((HOST, 443).to_socket_addrs()));
        let addresses = match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return Err(format!("{HOST} cannot be reached: {error}")),
            Err(_) => return Err(format!("{HOST} cannot be reached: the name look-up takes too long")),
        };
        let mut reason = "it has no address".to_owned();
        // One address of each kind is enough; a machine without IPv6 refuses those at once.
        for address in addresses.take(4) {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(_) => return Ok(()),
                Err(error) => reason = error.to_string(),
            }
        }
        Err(format!("{HOST} cannot be reached: {reason}"))
    }

    /// Runs `work`, which reports errors by panicking, and turns the panic into its message.
    fn quietly<T>(work: impl FnOnce() -> T + panic::UnwindSafe) -> Result<T, String> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let result = panic::catch_unwind(work);
        panic::set_hook(hook);
        result.map_err(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            text.unwrap_or("no reason given").replace('\n', " ")
        })
    }

    fn split(dataset: &impl Dataset<MnistItem>) -> Split {
        let mut split = Split::with_capacity(dataset.len());
        for item in dataset.iter() {
            // burn-dataset gives the bytes as floats of the same value.
            let pixels = std::array::from_fn(|index| item.image[index / SIDE][index % SIDE] as u8);
            split.push(&pixels, item.label);
        }
        split
    }
}
