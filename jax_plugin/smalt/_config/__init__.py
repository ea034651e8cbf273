"""When smalt is in force, and what its users choose: settings, compiler parameters, profiles, and what is changed in JAX meanwhile.

Independent of kernels: packages register what they change (`take_over`). Imports `_versions`.
"""

from smalt._config.params import CompilerParams
from smalt._config.profile import profile_folder, profile_space, profiles_by_warps
from smalt._config.choice import DEFAULT_TARGET, begin, disable, enable, enabled, is_enabled, scoped, settings, target_of
from smalt._config.takeover import hold, release, take_over
