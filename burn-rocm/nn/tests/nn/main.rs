//! The modules of this crate against Burn's own on `burn-flex`: values, gradients and records; natively and in lockstep.
#![allow(missing_docs, clippy::unwrap_used)]

mod activation;
mod amp;
mod attention;
mod attention_dropout;
mod attention_encoder;
mod attention_fused;
mod composed;
mod conv_act;
mod layer;
mod lockstep;
mod loss;
mod loss_elements;
mod norm;
mod norm_batch;
mod norm_mixed;
mod norm_record;
mod optim;
mod optim_devices;
mod optim_faults;
mod optim_ops;
mod pool;
mod routes;
mod support;
mod train;
mod views;
