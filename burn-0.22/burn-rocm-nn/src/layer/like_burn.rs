//! Layers that consist of one of Burn's layers and an activation. Optimizers, records and displays
//! see Burn's layer: the activation has no parameters and is not in the record, so checkpoints of
//! either load into the other.

/// Implements `Module` for a struct that has the fields of Burn's layer and `activation`, so that
/// it appears as Burn's layer.
macro_rules! like_burn {
    ($own:ident, $burn:ident, [$($field:ident),*]) => {
        impl $own {
            /// Burn's layer, followed by an activation.
            pub fn from_burn(layer: $burn, activation: Act) -> Self {
                let $burn { $($field),* } = layer;
                Self { $($field,)* activation }
            }

            /// Burn's layer with the same parameters.
            pub fn into_burn(self) -> $burn {
                $burn { $($field: self.$field),* }
            }

            /// Burn's layer with the same parameters. Initialises the parameters first, because a
            /// clone of an uninitialised parameter would draw different values.
            fn burn(&self) -> $burn {
                self.weight.val();
                if let Some(bias) = &self.bias {
                    bias.val();
                }
                self.clone().into_burn()
            }

            fn with(self, f: impl FnOnce($burn) -> $burn) -> Self {
                let activation = self.activation;
                Self::from_burn(f(self.into_burn()), activation)
            }
        }

        impl burn::module::Module for $own {
            fn collect_devices(&self, devices: burn::module::Devices) -> burn::module::Devices {
                self.clone().into_burn().collect_devices(devices)
            }

            fn fork(self, device: &burn::tensor::Device) -> Self {
                self.with(|layer| layer.fork(device))
            }

            fn to_device(self, device: &burn::tensor::Device) -> Self {
                self.with(|layer| layer.to_device(device))
            }

            fn train(self) -> Self {
                self.with(burn::module::Module::train)
            }

            fn valid(&self) -> Self {
                Self::from_burn(self.burn().valid(), self.activation)
            }

            fn materialize(self) -> Self {
                self.with(burn::module::Module::materialize)
            }

            fn visit<V: burn::module::ModuleVisitor>(&self, visitor: &mut V) {
                crate::amp::visit_layer(stringify!($own), || self.burn().visit(visitor));
            }

            fn map<M: burn::module::ModuleMapper>(self, mapper: &mut M) -> Self {
                crate::amp::visit_layer(stringify!($own), || self.with(|layer| layer.map(mapper)))
            }
        }

        impl core::fmt::Display for $own {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(&burn::module::ModuleDisplay::format(self, Default::default()))
            }
        }

        impl burn::module::ModuleDisplayDefault for $own {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                burn::module::ModuleDisplay::custom_content(&self.burn(), content)
                    .map(|content| content.add_debug_attribute("activation", &self.activation))
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(self)
            }
        }

        impl burn::module::ModuleDisplay for $own {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                burn::module::DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }
        }
    };
}
pub(super) use like_burn;
