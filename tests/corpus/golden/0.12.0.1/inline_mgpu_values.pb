body 0J
€J
€Rª

€

€‡
run_scoped2ö

€load"
€storeload"
€Elayout_cast"
€*"

new_layoutB

WG_STRIDED
€¶inline_mgpu"
€*,
arg_layoutsr

000B

WG_STRIDED
€*.
function*"inline_mgpu_values.<locals>.double*/
result_layoutsr

000B

WG_STRIDED
€storeZ€0