//! A cluster that is connected, and a pool of it. Each is closed when nothing uses it any more.

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::ptr;

use super::ffi::{Api, rados_ioctx_t, rados_t, rbd_image_t};
use crate::OpenError;

/// Checks what a function returned, and says what it was for.
pub(super) fn check(result: c_int, what: impl FnOnce(c_int) -> String) -> Result<(), OpenError> {
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(-result);
    Err(OpenError::system(format!("{}: {error}", what(-result)), error))
}

pub(super) fn text(text: &str) -> Result<CString, OpenError> {
    CString::new(text).map_err(|_| OpenError::new(format!("{text:?} has a byte 0")))
}

/// A connection to a cluster.
#[derive(Debug)]
pub(in crate::rbd) struct Cluster {
    pub(super) api: &'static Api,
    handle: rados_t,
}

impl Cluster {
    /// Creates a client with this name, `client.admin`, that is not connected yet. It knows what the file `conf` says,
    /// or the one that Ceph finds by itself, and these options.
    ///
    /// # Errors
    /// What is wrong with the name, the file or an option.
    pub(in crate::rbd) fn new(
        api: &'static Api,
        client: &str,
        conf: Option<&CStr>,
        options: &[(&str, &str)],
    ) -> Result<Self, OpenError> {
        let mut handle = ptr::null_mut();
        let name = text(client)?;
        // SAFETY: the call writes one handle, and reads two texts.
        let result = unsafe { (api.rados_create2)(&raw mut handle, c"ceph".as_ptr(), name.as_ptr(), 0) };
        check(result, |_| format!("{client} is no client of a cluster"))?;
        let cluster = Self { api, handle };
        let path = conf.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the handle is open, and the path a text or nothing.
        let result = unsafe { (api.rados_conf_read_file)(handle, path) };
        check(result, |errno| match (conf, errno) {
            (None, libc::ENOENT) => "there is no configuration of a cluster in $CEPH_CONF, /etc/ceph/ceph.conf, \
                                     ~/.ceph/ceph.conf or ceph.conf; conf=PATH names one"
                .to_owned(),
            (None, _) => "the configuration of the cluster cannot be used".to_owned(),
            (Some(path), _) => format!("the configuration {} cannot be used", path.to_string_lossy()),
        })?;
        for (name, value) in options {
            let (name, value) = (text(name)?, text(value)?);
            // SAFETY: the handle is open, and both are texts.
            let result = unsafe { (api.rados_conf_set)(handle, name.as_ptr(), value.as_ptr()) };
            check(result, |_| {
                format!("librados does not take {}={}", name.to_string_lossy(), value.to_string_lossy())
            })?;
        }
        Ok(cluster)
    }

    /// Connects.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(in crate::rbd) fn connect(&self, client: &str) -> Result<(), OpenError> {
        // SAFETY: the handle is open, and connected once.
        let result = unsafe { (self.api.rados_connect)(self.handle) };
        check(result, |errno| {
            let why = match errno {
                libc::ETIMEDOUT => "no monitor has answered",
                libc::ENOENT | libc::EACCES | libc::EPERM | libc::EOPNOTSUPP => {
                    "no monitor is known, or no key of this client, or the monitors refuse it"
                }
                _ => "the cluster cannot be reached",
            };
            format!("{why} (as {client})")
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and no pool or image uses it: those have this value, and close first.
        unsafe { (self.api.rados_shutdown)(self.handle) };
    }
}

/// A pool, or a namespace in it.
#[derive(Debug)]
pub(in crate::rbd) struct Pool {
    handle: rados_ioctx_t,
    pub(super) cluster: Cluster,
}

impl Pool {
    /// The pool of a cluster that is connected.
    ///
    /// # Errors
    /// There is none of this name.
    pub(in crate::rbd) fn open(cluster: Cluster, name: &str, namespace: Option<&str>) -> Result<Self, OpenError> {
        let (pool, namespace) = (text(name)?, namespace.map(text).transpose()?);
        let mut handle = ptr::null_mut();
        // SAFETY: the cluster is connected; the call reads a text and writes one handle.
        let result = unsafe { (cluster.api.rados_ioctx_create)(cluster.handle, pool.as_ptr(), &raw mut handle) };
        check(result, |errno| match errno {
            libc::ENOENT => format!("there is no pool '{name}'"),
            _ => format!("pool '{name}' cannot be used"),
        })?;
        let pool = Self { handle, cluster };
        if let Some(namespace) = namespace {
            // SAFETY: the handle is open, and the namespace a text.
            unsafe { (pool.cluster.api.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        }
        Ok(pool)
    }

    /// Whether the image can be opened, as it is now or its snapshot.
    pub(super) fn image(&self, name: &CStr, snapshot: Option<&CStr>, is_read_only: bool) -> (c_int, rbd_image_t) {
        let api = self.cluster.api;
        let mut image = ptr::null_mut();
        let open = if is_read_only { api.rbd_open_read_only } else { api.rbd_open };
        let snapshot = snapshot.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: the pool is open; the call reads one text or two, and writes one handle.
        let result = unsafe { open(self.handle, name.as_ptr(), &raw mut image, snapshot) };
        (result, image)
    }

    /// Returns true if there is an image of this name.
    #[cold]
    pub(super) fn has(&self, image: &CStr) -> bool {
        let (result, handle) = self.image(image, None, true);
        if result >= 0 {
            // SAFETY: the image is open, and not used any more.
            unsafe { (self.cluster.api.rbd_close)(handle) };
        }
        result >= 0
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and no image uses it: an image has this value, and closes first.
        unsafe { (self.cluster.api.rados_ioctx_destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if an error loses its number, or a text with a byte 0 is cut off there.
    #[test]
    fn errors_say_what_the_system_said() {
        let error = check(-libc::ENOENT, |errno| format!("no such thing ({errno})")).expect_err("it failed");
        let said = error.to_string();
        assert!(said.starts_with("no such thing (2): No such file or directory"), "{said}");
        assert!(check(0, |_| String::new()).is_ok() && check(1, |_| String::new()).is_ok());
        assert_eq!(text("a\0b").expect_err("it has one").to_string(), "\"a\\0b\" has a byte 0");
    }
}
