//! Layers that consist of one of Burn's layers and an activation. Optimizers, recorders and
//! displays see Burn's layer: the activation has no parameters and is not in the record, so
//! checkpoints of either load into the other.

/// Implements `Module` for a struct that has the fields of Burn's layer and `activation`, so that
/// it appears as Burn's layer.
macro_rules! like_burn {
    ($own:ident, $burn:ident, [$($field:ident),*]) => {
        impl<B: Backend> $own<B> {
            /// Burn's layer, followed by an activation.
            pub fn from_burn(layer: $burn<B>, activation: Act) -> Self {
                let $burn { $($field),* } = layer;
                Self { $($field,)* activation }
            }

            /// Burn's layer with the same parameters.
            pub fn into_burn(self) -> $burn<B> {
                $burn { $($field: self.$field),* }
            }

            /// Burn's layer with the same parameters. Initialises the parameters first, because a
            /// clone of an uninitialised parameter would draw different values.
            fn burn(&self) -> $burn<B> {
                self.weight.val();
                if let Some(bias) = &self.bias {
                    bias.val();
                }
                self.clone().into_burn()
            }

            fn with(self, f: impl FnOnce($burn<B>) -> $burn<B>) -> Self {
                let activation = self.activation;
                Self::from_burn(f(self.into_burn()), activation)
            }
        }

        impl<B: Backend> burn::module::Module<B> for $own<B> {
            type Record = <$burn<B> as burn::module::Module<B>>::Record;

            fn collect_devices(&self, devices: burn::module::Devices<B>) -> burn::module::Devices<B> {
                self.burn().collect_devices(devices)
            }

            fn fork(self, device: &B::Device) -> Self {
                self.with(|layer| layer.fork(device))
            }

            fn to_device(self, device: &B::Device) -> Self {
                self.with(|layer| layer.to_device(device))
            }

            fn visit<V: burn::module::ModuleVisitor<B>>(&self, visitor: &mut V) {
                crate::amp::visit_layer(stringify!($own), || self.burn().visit(visitor));
            }

            fn map<M: burn::module::ModuleMapper<B>>(self, mapper: &mut M) -> Self {
                crate::amp::visit_layer(stringify!($own), || self.with(|layer| layer.map(mapper)))
            }

            fn load_record(self, record: Self::Record) -> Self {
                self.with(|layer| layer.load_record(record))
            }

            fn into_record(self) -> Self::Record {
                self.into_burn().into_record()
            }
        }

        impl<B: burn::tensor::backend::AutodiffBackend> burn::module::AutodiffModule<B> for $own<B> {
            type InnerModule = $own<B::InnerBackend>;

            fn valid(&self) -> Self::InnerModule {
                $own::from_burn(self.burn().valid(), self.activation)
            }

            fn from_inner(module: Self::InnerModule) -> Self {
                let activation = module.activation;
                Self::from_burn(burn::module::AutodiffModule::from_inner(module.into_burn()), activation)
            }
        }

        impl<B: burn::tensor::backend::AutodiffBackend> burn::module::HasAutodiffModule<B>
            for $own<B::InnerBackend>
        {
            type TrainModule = $own<B>;
        }

        impl<B: Backend> core::fmt::Display for $own<B> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(&burn::module::ModuleDisplay::format(self, Default::default()))
            }
        }

        impl<B: Backend> burn::module::ModuleDisplayDefault for $own<B> {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                burn::module::ModuleDisplay::custom_content(&self.burn(), content)
                    .map(|content| content.add_debug_attribute("activation", &self.activation))
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(self)
            }
        }

        impl<B: Backend> burn::module::ModuleDisplay for $own<B> {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                burn::module::DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }
        }
    };
}
pub(super) use like_burn;
